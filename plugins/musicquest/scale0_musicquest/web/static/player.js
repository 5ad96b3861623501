// The player: two audio elements, one that plays, and one that already loads the next song.

const RETRY_MS = 1500;

export class Player extends EventTarget {
  constructor(nextSong) {
    super();
    this.nextSong = nextSong;
    this.song = null;
    this.wanted = false;
    this.tries = 0;
    this.audio = this.element();
    this.spare = this.element();
  }

  element() {
    const audio = new Audio();
    audio.preload = "auto";
    const own = (action) => () => { if (audio === this.audio) action(); };
    for (const kind of ["play", "pause", "playing", "waiting", "timeupdate", "progress", "durationchange", "volumechange", "seeked"]) {
      audio.addEventListener(kind, own(() => this.changed(kind)));
    }
    audio.addEventListener("ended", own(() => this.dispatchEvent(new Event("ended"))));
    audio.addEventListener("error", own(() => this.failed()));
    return audio;
  }

  changed(kind) {
    if (kind === "playing") this.tries = 0;
    if (kind === "progress" || kind === "timeupdate") this.prefetch();
    this.dispatchEvent(new Event("change"));
  }

  load(song, play = true) {
    const { volume, muted } = this.audio;
    this.audio.pause();
    if (this.spare.dataset.url === song.url) [this.audio, this.spare] = [this.spare, this.audio];
    this.drop(this.spare);
    this.song = song;
    this.tries = 0;
    Object.assign(this.audio, { volume, muted });
    if (this.audio.dataset.url !== song.url || this.audio.error) this.fetch(this.audio, song);
    else this.audio.currentTime = 0;
    if (play) this.play();
    else this.dispatchEvent(new Event("change"));
  }

  fetch(audio, song) {
    audio.dataset.url = song.url;
    audio.src = song.url;
  }

  drop(audio) {
    if (!audio.dataset.url) return;
    delete audio.dataset.url;
    audio.removeAttribute("src");
    audio.load();
  }

  unload() {
    this.wanted = false;
    this.audio.pause();
    this.drop(this.audio);
    this.drop(this.spare);
    this.song = null;
    this.dispatchEvent(new Event("change"));
  }

  async play() {
    if (!this.song) return;
    this.wanted = true;
    try {
      await this.audio.play();
    } catch (error) {
      if (error.name === "NotAllowedError") this.wanted = false; // the browser wants a click first
    }
    this.dispatchEvent(new Event("change"));
  }

  pause() {
    this.wanted = false;
    this.audio.pause();
  }

  toggle() {
    if (this.audio.paused) this.play();
    else this.pause();
  }

  // The next song is fetched once this one is all here, or nearly over.
  prefetch() {
    const { audio } = this;
    if (!Number.isFinite(audio.duration) || (this.buffered < audio.duration - 0.5 && audio.duration - audio.currentTime > 20)) return;
    const next = this.nextSong();
    if (!next || next === this.song || this.spare.dataset.url === next.url) return;
    this.drop(this.spare);
    this.fetch(this.spare, next);
  }

  // A song that stops arriving is asked for again where it stopped, twice; then a person decides.
  failed() {
    if (!this.song || !this.audio.dataset.url) return;
    const { song, audio } = this;
    const at = audio.currentTime;
    if (this.tries++ < 2 && audio.error?.code !== MediaError.MEDIA_ERR_DECODE) {
      setTimeout(() => {
        if (this.song !== song || !audio.error) return;
        this.fetch(audio, song);
        audio.currentTime = at;
        if (this.wanted) this.play();
      }, RETRY_MS);
    } else {
      this.dispatchEvent(new CustomEvent("failed", { detail: song }));
    }
    this.dispatchEvent(new Event("change"));
  }

  get playing() { return !this.audio.paused; }
  get waiting() { return this.wanted && (this.audio.readyState < 3 || this.audio.paused); }
  get time() { return this.audio.currentTime; }
  get duration() { return Number.isFinite(this.audio.duration) ? this.audio.duration : this.song?.duration || 0; }

  // How far the song is here, from the present position on.
  get buffered() {
    const { buffered, currentTime } = this.audio;
    for (let part = 0; part < buffered.length; part++) {
      if (buffered.start(part) <= currentTime + 0.1 && buffered.end(part) >= currentTime) return buffered.end(part);
    }
    return 0;
  }

  seek(seconds) {
    if (this.song && Number.isFinite(seconds)) this.audio.currentTime = Math.min(Math.max(seconds, 0), this.duration || 0);
  }

  set volume(value) { this.audio.volume = value; this.spare.volume = value; }
  get volume() { return this.audio.volume; }
  set muted(value) { this.audio.muted = value; this.spare.muted = value; }
  get muted() { return this.audio.muted; }
}

// Keys for media, headsets and lock screens.
export function mediaKeys(player, { next, previous }) {
  const session = navigator.mediaSession;
  if (!session) return;
  const actions = {
    play: () => player.play(),
    pause: () => player.pause(),
    nexttrack: next,
    previoustrack: previous,
    seekto: (details) => player.seek(details.seekTime),
    seekforward: (details) => player.seek(player.time + (details.seekOffset ?? 10)),
    seekbackward: (details) => player.seek(player.time - (details.seekOffset ?? 10)),
  };
  for (const [name, action] of Object.entries(actions)) {
    try { session.setActionHandler(name, action); } catch { /* this browser does not know the key */ }
  }
  let told = null;
  player.addEventListener("change", () => {
    if (told !== player.song) {
      told = player.song;
      session.metadata = told && new MediaMetadata({ title: told.title, artist: told.artist ?? "", album: told.album ?? "" });
    }
    session.playbackState = player.song ? (player.playing ? "playing" : "paused") : "none";
    if (player.duration) session.setPositionState?.({ duration: player.duration, position: Math.min(player.time, player.duration) });
  });
}
