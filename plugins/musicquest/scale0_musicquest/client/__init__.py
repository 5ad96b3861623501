"""What applications use: ``MusicClient``, and how it can fail."""

from scale0_musicquest.client.errors import *
from scale0_musicquest.client.sync import *
from scale0_musicquest.client.transfer import Progress as Progress
