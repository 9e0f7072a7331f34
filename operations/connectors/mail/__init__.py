"""Mail in our own words to a customer whose address the shop keeps."""
