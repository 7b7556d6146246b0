"""The scheduling testbed: open-loop arrivals against front ends of several designs, and a simulation of more cores."""
