// What a page does in the browser without the server: its address, its keys, the theme, and the age of old data.
import { h } from "vue";

const THEMES = ["auto", "light", "dark"];
const YEAR_S = 31536000;

function ageText(since) {
  const seconds = Math.max(0, Math.round((Date.now() - since) / 1000));
  if (seconds < 120) return `${seconds} s`;
  return seconds < 7200 ? `${Math.floor(seconds / 60)} min` : `${Math.floor(seconds / 3600)} h`;
}

export default {
  props: { url: String, focus: String, theme: String, cookie: String },
  data() {
    return { chosen: this.theme || "auto" };
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
    this.timer = setInterval(this.showAges, 1000);
    this.showAges();
  },
  updated() {
    this.showAges();
  },
  unmounted() {
    document.removeEventListener("keydown", this.onKey);
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
    return h("button", { type: "button", class: "theme", onClick: this.choose }, `Theme: ${this.chosen}`);
  },
};
