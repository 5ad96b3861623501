"""State machines of the music broker and the music server."""
