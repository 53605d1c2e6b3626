"""Watching a run: who is told, in lines or for TensorBoard, and where its time goes."""
