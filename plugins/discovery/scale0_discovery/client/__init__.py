"""What follows the discovery service from outside."""
