"""What runs did and how long it took: recorded, stored, shown and exported."""
