"""Refunds at Stripe, through its official SDK."""
