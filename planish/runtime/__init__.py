"""Everything that runs a compiled program: linker, loader, thread pool, memory pool, call path, caches."""
