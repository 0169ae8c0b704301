"""How far what was fitted is from rows that did not train."""
