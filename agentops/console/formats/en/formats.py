"""How the stock admin pages write times: as our own pages do."""

DATETIME_FORMAT = "j M Y H:i:s"
DATE_FORMAT = "j M Y"
TIME_FORMAT = "H:i:s"
