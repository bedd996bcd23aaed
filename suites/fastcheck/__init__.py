"""Models small enough to be compiled for every pull request; each has one trait that has broken piecewise builds."""
