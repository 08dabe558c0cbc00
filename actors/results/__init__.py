"""Large and binary results are stored, models see a head and read on in pages (seed 000)."""
