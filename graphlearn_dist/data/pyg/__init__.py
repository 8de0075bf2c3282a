"""What PyG's objects hold."""
