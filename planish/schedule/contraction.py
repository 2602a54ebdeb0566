def schedule_contraction(*a): return None
