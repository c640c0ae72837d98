"""What is: switches, links, hosts, rules and events as plain frozen values.

Nothing here reads a clock, opens a socket, parses YAML or names a framework; every other package may import it,
and it imports none of them.
"""
