"""From a graph to kernels with schedules, and to a program: fusion, schedules, memory plan."""
