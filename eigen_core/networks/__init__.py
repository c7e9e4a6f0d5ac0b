"""Networks of a group of agents, computed together: encoder, pooling, actor and critic."""
