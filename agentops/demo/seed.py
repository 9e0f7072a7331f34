"""The demo's rows: two tenants, their people, rules, connections and tokens. Idempotent."""

import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings
from django.db import transaction

from agentops.audit.entries import Actor
from agentops.kernel import sealed
from agentops.kernel.clock import Now
from agentops.kernel.ids import uuid7
from agentops.tenancy import identity, principals, vault
from agentops.tenancy.access import create_tenant, join
from agentops.tenancy.models import ApiToken, Membership, Tenant, User
from approvals.models import Policy, ReviewLimit
from operations.contract import give_grade, prove
from operations.grades import present_grade
from operations.hooks import secret_place
from operations.models import Connection, SettleLimit
from operations.services import connection_place

STRIPE_KEY = "sk_test_agentops_demo"
TENANTS = {"acme": "Acme Outdoor", "globex": "Globex Audio"}
# name: tenant, role, limit in minor units of EUR
PEOPLE: Mapping[str, tuple[str, Membership.Role, int | None]] = {
    "reviewer": ("acme", Membership.Role.REVIEWER, 20_000),
    "lead": ("acme", Membership.Role.LEAD, 200_000),
    "engineer": ("acme", Membership.Role.ENGINEER, None),
    "policy-owner": ("acme", Membership.Role.POLICY_OWNER, None),
    "globex-reviewer": ("globex", Membership.Role.REVIEWER, 20_000),
}
NAMES = {
    "reviewer": ("Rosa", "Reiter"),
    "lead": ("Lena", "Adler"),
    "engineer": ("Emil", "Novak"),
    "policy-owner": ("Paula", "Ortiz"),
    "globex-reviewer": ("Gita", "Sharma"),
    "admin": ("Ada", "Min"),
}
ALL_BUT_DECIDING = [scope for scope in principals.SCOPES if scope != "approvals:decide"]
EUR = 'operation.currency == "EUR" && '
RULES: Mapping[str, list[dict[str, Any]]] = {
    "refund.create": [
        {
            "code": "refund.over_ceiling",
            "when": EUR + "operation.amount_minor > 200000",
            "outcome": "deny",
            "risk": "high",
            "sentences": {
                "en": "Refunds above {ceiling_minor} are not made here; our finance team will contact you.",
                "zh": "超过 {ceiling_minor} 的退款不在此处理,我们的财务团队会与您联系。",
            },
            "params": {"ceiling_minor": 200_000},
        },
        {
            "code": "refund.small",
            "when": EUR + "operation.amount_minor <= 5000",
            "outcome": "allow",
            "risk": "routine",
            "sentences": {
                "en": "Refunds up to {limit_minor} need nobody's approval.",
                "zh": "{limit_minor} 以下的退款无需审批。",
            },
            "params": {"limit_minor": 5_000},
        },
        {
            "code": "refund.large",
            "when": EUR + "operation.amount_minor > 50000",
            "outcome": "require_approval",
            "risk": "high",
            "sentences": {
                "en": "Above {limit_minor} a refund is high risk and a person decides.",
                "zh": "超过 {limit_minor} 的退款风险较高,须由人决定。",
            },
            "params": {"limit_minor": 50_000},
        },
        {
            "code": "refund.over_limit",
            "when": "true",
            "outcome": "require_approval",
            "risk": "elevated",
            "sentences": {
                "en": "The amount is above the automatic limit of {limit_minor}.",
                "zh": "金额超过 {limit_minor} 的自动上限。",
            },
            "params": {"limit_minor": 5_000},
        },
    ],
    "order.cancel": [
        {
            "code": "order.cancel_asks",
            "when": "true",
            "outcome": "require_approval",
            "risk": "elevated",
            "sentences": {"en": "A person decides every cancellation.", "zh": "每次取消订单都须由人决定。"},
        }
    ],
    "order.reopen": [
        {
            "code": "order.reopen_asks",
            "when": "true",
            "outcome": "require_approval",
            "risk": "elevated",
            "sentences": {"en": "A person decides every reopening.", "zh": "每次恢复订单都须由人决定。"},
        }
    ],
    "mail.send": [{"code": "mail.receipts", "when": "true", "outcome": "allow", "risk": "routine"}],
    "note.add": [{"code": "note.free", "when": "true", "outcome": "allow", "risk": "routine"}],
}


def seed(path: Path) -> dict[str, Any]:
    """Make what is missing and write `demo.json` to `path`: addresses, orders, tokens, accounts with passwords."""
    known = json.loads(path.read_text()) if path.exists() else {}
    with transaction.atomic():
        tenants = {slug: _tenant(slug, name) for slug, name in TENANTS.items()}
        accounts = _people(
            tenants, {account["name"]: account["password"] for account in known.get("accounts", [])}
        )
        tokens = _tokens(tenants, known.get("tokens", {}))
    _write(
        path.with_name("jwks.json"), identity.jwks()
    )  # the shop verifies with it, also while the web is down
    _grade_connections()
    for tenant in tenants.values():
        _listen(tenant)
    written = {
        "base_url": settings.AGENTOPS_BASE_URL,
        "provider_url": settings.AGENTOPS_PROVIDER_URL,
        "shop_url": settings.AGENTOPS_SHOP_URL,
        "database_url": settings.DATABASE_URL,
        "orders": orders_of("acme") + orders_of("globex"),
        "tokens": tokens,
        "accounts": accounts,
    }
    _write(path, written)
    return written


def _write(path: Path, content: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        json.dump(content, file, indent=2)
    fresh.replace(path)


def orders_of(tenant: str) -> list[dict[str, Any]]:
    """The shop's orders of a tenant: {id, tenant, charge, amount_minor, currency, …}, from its control door."""
    answer = httpx.get(f"{settings.AGENTOPS_PROVIDER_URL}/_orders", params={"tenant": tenant}, timeout=10)
    answer.raise_for_status()
    orders: list[dict[str, Any]] = answer.json()
    return orders


def provider_url() -> str:
    """The provider's control door: of this process's environment, else of the copy that runs on AGENTOPS_DATA."""
    running = settings.AGENTOPS_DATA / "demo.json"
    if settings.AGENTOPS_PROVIDER_URL or not running.exists():
        return str(settings.AGENTOPS_PROVIDER_URL)
    return str(json.loads(running.read_text())["provider_url"])


def more_orders(tenant: str, count: int, amount_minor: int | None) -> list[dict[str, Any]]:
    """Let the shop make more orders, each with a customer and a charge."""
    wanted = {"tenant": tenant, "count": count, "amount_minor": amount_minor}
    answer = httpx.post(
        f"{provider_url()}/_orders",
        json={name: value for name, value in wanted.items() if value is not None},
        timeout=60,
    )
    answer.raise_for_status()
    orders: list[dict[str, Any]] = answer.json()
    return orders


def _tenant(slug: str, name: str) -> Tenant:
    tenant = create_tenant(slug, name)
    _connect(tenant, "payments", "stripe", settings.AGENTOPS_PAYMENTS_URL, STRIPE_KEY)
    _connect(tenant, "shop", "shop", settings.AGENTOPS_SHOP_URL, "")
    _connect(tenant, "mail", "mail", "file:", "")
    for action, rules in RULES.items():
        if not Policy.objects.filter(tenant=tenant, action=action).exists():
            Policy.objects.create(
                tenant=tenant, action=action, number=1, rules=rules, published_at=Now(), published_by="system"
            )
    return tenant


def _connect(tenant: Tenant, name: str, connector: str, base_url: str, secret: str) -> None:
    """The addresses may be others at the next start, since free ports are; the account is the same."""
    connection = Connection.objects.filter(tenant=tenant, name=name).first()
    if connection is not None:
        Connection.objects.filter(pk=connection.pk).update(base_url=base_url)
        return
    connection_id = uuid7()
    Connection.objects.create(
        id=connection_id,
        tenant=tenant,
        name=name,
        connector=connector,
        base_url=base_url,
        sealed_credential=sealed.seal_json(
            vault.for_tenant(tenant.id), connection_place(connection_id), {"secret": secret}
        ),
    )


def _listen(tenant: Tenant) -> None:
    """Let the payments tell this tenant of its refunds, signed with a secret of its own."""
    connection = Connection.objects.get(tenant=tenant, name="payments")
    secret = f"whsec_{secrets.token_urlsafe(24)}"
    Connection.objects.filter(pk=connection.pk).update(
        sealed_hook_secret=sealed.seal_json(
            vault.for_tenant(tenant.id), secret_place(connection.id), {"secret": secret}
        )
    )
    url = f"{settings.AGENTOPS_BASE_URL}/hooks/{connection.public_id}"
    wanted = {"tenant": tenant.slug, "url": url, "secret": secret}
    httpx.post(f"{settings.AGENTOPS_PROVIDER_URL}/_webhooks", json=wanted, timeout=10).raise_for_status()


def _grade_connections() -> None:
    """Recovery relies on what is proved: a first start, and one with a newer connector, runs the contract test."""
    for connection in Connection.objects.filter(mode="test").select_related("tenant"):
        if present_grade(connection) is None:
            give_grade(connection, list(prove(connection)), Actor("system", "seed"))


def _people(tenants: Mapping[str, Tenant], passwords: Mapping[str, str]) -> list[dict[str, str]]:
    accounts = [_account("admin", "administrator of the installation", passwords, is_superuser=True)]
    for name, (slug, role, limit) in PEOPLE.items():
        accounts.append(_account(name, f"{role.value.replace('_', ' ')} of {slug}", passwords))
        user = User.objects.get(username=name)
        join(tenants[slug], user, role)
        if role == Membership.Role.ENGINEER:
            SettleLimit.objects.get_or_create(
                tenant=tenants[slug], person=user, action="", currency="EUR", defaults={"each_minor": 20_000}
            )
        if limit is not None:
            ReviewLimit.objects.get_or_create(
                tenant=tenants[slug], reviewer=user, action="", currency="EUR", defaults={"each_minor": limit}
            )
    return accounts


def _account(
    name: str, role: str, passwords: Mapping[str, str], *, is_superuser: bool = False
) -> dict[str, str]:
    first, last = NAMES[name]
    user, is_new = User.objects.get_or_create(
        username=name,
        defaults={
            "first_name": first,
            "last_name": last,
            "email": f"{name}@example.test",
            "is_staff": True,
            "is_superuser": is_superuser,
        },
    )
    password = passwords.get(name) or f"{name}-{secrets.token_hex(4)}"
    if is_new or not user.check_password(password):  # each costs a second of computing
        user.set_password(password)
        user.save(update_fields=["password"])
    return {"name": name, "password": password, "role": role}


def _tokens(tenants: Mapping[str, Tenant], known: Mapping[str, str]) -> dict[str, str]:
    reviewer = User.objects.get(username="reviewer")
    wanted: Mapping[str, tuple[Tenant, list[str], User | None]] = {
        "acme": (tenants["acme"], ALL_BUT_DECIDING, None),
        "globex": (tenants["globex"], ALL_BUT_DECIDING, None),
        "acme_reviewer": (tenants["acme"], ["runs:read", "approvals:read", "approvals:decide"], reviewer),
    }
    tokens = {}
    for name, (tenant, scopes, person) in wanted.items():
        text = known.get(name, "")
        if not text or principals.authenticate(text, "cli") is None:
            ApiToken.objects.filter(tenant=tenant, name=name).delete()
            _, text = principals.issue(tenant, name, scopes, person=person)
        tokens[name] = text
    return tokens
