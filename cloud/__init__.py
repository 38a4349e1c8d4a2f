"""Far agents: providers in the cloud, their prices, and the gateway that holds their keys."""
