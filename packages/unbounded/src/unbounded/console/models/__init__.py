"""Data of the console's views: pure functions of objects, explanations and plans, without a browser."""
