"""The shop's order API: the example of an HTTP connector, and the place where others ask whose an order is."""
