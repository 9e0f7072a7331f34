"""What the scripted support agent says, in the languages it speaks."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Words:
    which_order: str
    one_at_a_time: str
    looking_up: str
    checking: str
    refunding: str
    cancelling: str
    refunded: str
    cancelled: str
    not_refundable: str
    rejected: str
    expired: str
    withdrawn: str
    unknown: str
    unknown_order: str
    not_yours: str
    failed: str
    described: str
    tracking: str


ENGLISH = Words(
    which_order="I am glad to help. Which order is it about? Its number looks like A-1001.",
    one_at_a_time="You name several orders ({orders}). Which one shall I look at first?",
    looking_up="Let me look up order {order}.",
    checking="Let me check the refund policy.",
    refunding="I will request the refund for order {order}.",
    cancelling="I will request the cancellation of order {order}.",
    refunded="I have refunded {amount} for order {order}. The refund's reference is {ref}.",
    cancelled="Order {order} is cancelled.",
    not_refundable="I am sorry, order {order} cannot be refunded: {reason}.",
    rejected="I am sorry, the request for order {order} was declined: {reason}.",
    expired="Nobody decided on the request for order {order} in time. It was not refused; please ask again.",
    withdrawn="The request for order {order} was cancelled before anything was sent.",
    unknown="Whether the request for order {order} was carried out is unknown; a person is on it.",
    unknown_order="I cannot find order {order}. Please check its number.",
    not_yours="I am sorry, order {order} belongs to another customer, so I cannot speak about it.",
    failed="I am sorry, the request for order {order} could not be carried out: {reason}.",
    described="Order {order} ({amount}) is {where}.",
    tracking=" Its tracking number is {tracking}.",
)

CHINESE = Words(
    which_order="很高兴为您服务。请问是哪个订单?订单号的格式如 A-1001。",
    one_at_a_time="您提到了多个订单({orders})。请问先处理哪一个?",
    looking_up="我来查询订单 {order}。",
    checking="我来核对退款政策。",
    refunding="我将为订单 {order} 申请退款。",
    cancelling="我将申请取消订单 {order}。",
    refunded="已为订单 {order} 退款 {amount},退款编号为 {ref}。",
    cancelled="订单 {order} 已取消。",
    not_refundable="很抱歉,订单 {order} 不能退款:{reason}。",
    rejected="很抱歉,订单 {order} 的申请未获批准:{reason}。",
    expired="订单 {order} 的申请在期限内无人处理。这并不是拒绝,请再次提出申请。",
    withdrawn="订单 {order} 的申请已在发送之前取消。",
    unknown="订单 {order} 的申请是否已完成尚不清楚,已有专人在核实。",
    unknown_order="找不到订单 {order},请核对订单号。",
    not_yours="很抱歉,订单 {order} 属于其他客户,无法为您处理。",
    failed="很抱歉,订单 {order} 的申请未能完成:{reason}。",
    described="订单 {order}({amount})的状态:{where}。",
    tracking="快递单号:{tracking}。",
)
