"""The built-in rules: `.rules` files hold data rules, the modules here hold Python rules."""
