"""Small pieces that services, clients and plugins share; each exists once."""
