"""Which connectors there are: one line each."""

from collections.abc import Mapping

from .base import Action, Connector
from .mail.connector import MailConnector
from .shop.connector import ShopConnector
from .stripe.connector import StripeConnector

CONNECTORS: Mapping[str, Connector] = {
    connector.name: connector for connector in (StripeConnector(), ShopConnector(), MailConnector())
}
ACTIONS: Mapping[str, Action] = {
    action.name: action for connector in CONNECTORS.values() for action in connector.actions
}


def reversal_of(action: str) -> Action | None:
    """The action that undoes that one; None where nothing does."""
    return next((each for each in ACTIONS.values() if action and each.reverses == action), None)
