"""What a trained model says of all nodes: exact inference layer by layer, rankings, nearest rows, exports."""
