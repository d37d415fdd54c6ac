"""From vectors to pairs: nearest neighbours, margins, mining, held-out retrieval."""
