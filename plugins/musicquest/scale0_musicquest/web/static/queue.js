// The queue: songs in an order, one of them current. It knows nothing of the page, and can be kept as JSON.

export const MOST = 500;
export const REPEATS = ["off", "all", "one"];

const keyOf = (song) => `${song.name}\n${song.sha256 ?? ""}`;

export class Queue {
  constructor(kept = {}, random = Math.random) {
    this.random = random;
    this.songs = [];
    for (const song of Array.isArray(kept.songs) ? kept.songs.slice(0, MOST) : []) {
      if (typeof song?.name === "string" && typeof song.url === "string" && song.url.startsWith("/api/song/")) this.add(song);
    }
    this.current = this.songs[kept.at] ?? null;
    this.repeat = REPEATS.includes(kept.repeat) ? kept.repeat : "off";
    this.order = [];
    this.setShuffle(kept.shuffle === true);
  }

  toJSON() {
    return { songs: this.songs, at: this.songs.indexOf(this.current), repeat: this.repeat, shuffle: this.shuffle };
  }

  find(song) {
    return this.songs.find((one) => keyOf(one) === keyOf(song)) ?? null;
  }

  // Adds a song at the end, or behind the current one; a song that is there already stays where it is.
  add(song, afterCurrent = false) {
    const there = this.find(song);
    if (there) return there;
    if (this.songs.length >= MOST) return null;
    const place = afterCurrent && this.current ? this.songs.indexOf(this.current) + 1 : this.songs.length;
    this.songs.splice(place, 0, song);
    if (this.shuffle) {
      const from = this.order.indexOf(this.current) + 1;
      const at = afterCurrent ? from : from + Math.floor(this.random() * (this.order.length - from + 1));
      this.order.splice(at, 0, song);
    }
    return song;
  }

  remove(song) {
    const goesOn = song === this.current ? this.following(true) : null;
    this.songs = this.songs.filter((one) => one !== song);
    this.order = this.order.filter((one) => one !== song);
    if (song === this.current) this.current = goesOn === song ? null : goesOn;
  }

  move(song, by) {
    const from = this.songs.indexOf(song);
    const to = Math.min(Math.max(from + by, 0), this.songs.length - 1);
    if (from < 0 || from === to) return false;
    this.songs.splice(to, 0, ...this.songs.splice(from, 1));
    return true;
  }

  clear() {
    this.songs = [];
    this.order = [];
    this.current = null;
  }

  setShuffle(on) {
    this.shuffle = on;
    this.order = on ? this.mixed() : [];
  }

  // All songs in an order by chance, the current one first.
  mixed() {
    const rest = this.songs.filter((song) => song !== this.current);
    for (let last = rest.length - 1; last > 0; last--) {
      const other = Math.floor(this.random() * (last + 1));
      [rest[last], rest[other]] = [rest[other], rest[last]];
    }
    return this.current ? [this.current, ...rest] : rest;
  }

  // The song that comes next; byHand means that a person asked, so "repeat one" does not hold them back.
  following(byHand = false) {
    if (this.repeat === "one" && !byHand) return this.current;
    const order = this.shuffle ? this.order : this.songs;
    const next = order[order.indexOf(this.current) + 1];
    return next ?? (this.repeat !== "off" ? order[0] ?? null : null);
  }

  before() {
    const order = this.shuffle ? this.order : this.songs;
    const at = order.indexOf(this.current);
    return order[at - 1] ?? (this.repeat !== "off" ? order[order.length - 1] ?? null : null);
  }
}
