"""What keeps tasks going where an agent, or the way to it, is at fault: breakers, time-outs, hedging."""
