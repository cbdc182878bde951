"""One rule per kind of layer: from what it saw to the factors of its gradients."""
