"""The policy on tools: rules, limits and further engines. The door: ``engine.PolicyEngine``."""
