"""Evidence about a draft: cheap looks at it, what each costs, and when to escalate."""
