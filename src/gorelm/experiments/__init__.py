"""The paper's experiments and similar ones: declaration, execution, storage, reports."""
