def write_contraction(*a): raise NotImplementedError
