"""Atlas: real cities and countries, what SmolLM2 says of them, and verdicts by the tables of GeoNames (CC BY 4.0)."""
