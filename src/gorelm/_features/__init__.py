"""From inputs to hidden outputs: scaling, activations, random hidden layers."""
