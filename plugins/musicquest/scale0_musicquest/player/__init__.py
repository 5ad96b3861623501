"""Playing songs: players, the list of songs, playlists, and the interactive player."""
