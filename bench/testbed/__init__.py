"""The scheduling testbed: requests come when they are due; front ends that tokenize answer them on an event loop."""
