// What a page does in the browser without the server: its address, its keys, the theme, the age of old data, and what it
// shows while the connection to the console is lost. Messages of a lost connection would be sent once it is back, such as
// a confirmation: so buttons and forms do nothing until then.
import { h } from "vue";

const THEMES = ["auto", "light", "dark"];
const YEAR_S = 31536000;
const TICK_MS = 1000;
const BLIP_MS = 1500; // a connection that comes back sooner is not lost

function ageText(since) {
  const seconds = Math.max(0, Math.round((Date.now() - since) / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

export default {
  props: { url: String, focus: String, theme: String, cookie: String },
  data() {
    return { chosen: this.theme || "auto", lost: false, age: "" };
  },
  watch: {
    url(url) {
      if (url) history.replaceState(history.state, "", url);
    },
    focus(target) {
      document.getElementById(target.split(" ")[0])?.focus();
    },
  },
  mounted() {
    // The first state of the page is in a script: what the user may not read later must not stay there.
    for (const script of document.querySelectorAll("body script:not([src])")) script.remove();
    document.addEventListener("keydown", this.onKey);
    for (const kind of ["click", "submit"]) document.addEventListener(kind, this.onPress, true);
    this.heardAt = Date.now();
    this.timer = setInterval(this.tick, TICK_MS);
    this.$nextTick(this.tick); // the socket is made once all of the page is mounted
  },
  updated() {
    this.showAges();
  },
  unmounted() {
    document.removeEventListener("keydown", this.onKey);
    for (const kind of ["click", "submit"]) document.removeEventListener(kind, this.onPress, true);
    document.body.classList.remove("lost");
    clearInterval(this.timer);
  },
  methods: {
    onKey(event) {
      const inField = ["INPUT", "TEXTAREA", "SELECT"].includes(event.target.tagName);
      if (event.key !== "/" || inField || event.ctrlKey || event.metaKey || event.altKey) return;
      const search = document.querySelector("[data-search]");
      if (!search) return;
      event.preventDefault();
      search.focus();
      search.select();
    },
    onPress(event) {
      if (!this.wasConnected || this.socket.connected || !event.target.closest("main")) return;
      if (event.type === "click" && !event.target.closest("button")) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    },
    tick() {
      this.showAges();
      if (this.socket !== window.socket) this.listen(window.socket);
      const connected = !this.socket || this.socket.connected;
      if (connected) this.lostAt = null;
      else this.lostAt ??= Date.now();
      this.lost = !connected && Date.now() - this.lostAt >= BLIP_MS;
      this.age = this.lost ? ageText(this.heardAt) : "";
      document.body.classList.toggle("lost", this.lost);
    },
    listen(socket) {
      const heard = () => {
        this.heardAt = Date.now();
      };
      const connected = () => {
        heard();
        this.wasConnected = true;
      };
      this.socket = socket;
      if (socket.connected) connected();
      socket.on("connect", connected);
      socket.onAny(heard);
      socket.io.on("ping", heard);
      // A connection that ends was alive until then, but one without answers was not.
      socket.on("disconnect", (reason) => reason === "ping timeout" || heard());
    },
    showAges() {
      for (const element of document.querySelectorAll("[data-since]")) {
        const since = Number(element.dataset.since);
        element.textContent = since ? ageText(since) : "";
      }
    },
    choose() {
      this.chosen = THEMES[(THEMES.indexOf(this.chosen) + 1) % THEMES.length];
      document.cookie = `${this.cookie}=${this.chosen}; path=/; max-age=${YEAR_S}; samesite=strict`;
      window.setDark(this.chosen === "auto" ? null : this.chosen === "dark");
    },
  },
  render() {
    const theme = h("button", { type: "button", class: "theme", onClick: this.choose }, `Theme: ${this.chosen}`);
    const notice = h("div", { class: ["lost-notice", { hidden: !this.lost }] }, [
      h("strong", { role: "alert" }, this.lost ? "Connection lost" : ""), // its age would be read aloud each second
      h("span", `: the data are ${this.age} old, and buttons do nothing. Trying to reconnect …`),
    ]);
    return h("div", { class: "state" }, [theme, notice]);
  },
};
