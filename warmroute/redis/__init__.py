"""Redis as the parts reach it: one server, Sentinel, Cluster; access rules; refusals in words."""
