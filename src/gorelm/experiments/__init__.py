"""The paper's experiments and others like them: declared, run, kept, summed up."""
