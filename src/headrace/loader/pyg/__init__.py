"""What loaders know of PyG: its objects, stores, keywords and kinds of subgraphs. All but the keywords need torch-geometric."""
