// A labelled text field, or a choice if it has options. It emits "change" with the value: of a text, shortly after the
// last key. It has no template, so that the browser compiles nothing.
import { h } from "vue";

const AFTER_MS = 120;

export default {
  props: { label: String, value: String, options: Array, hint: String, search: Boolean, name: String },
  emits: ["change"],
  data() {
    return { text: this.value ?? "", timer: null };
  },
  watch: {
    value(value) {
      this.text = value ?? "";
    },
  },
  methods: {
    later(value) {
      this.text = value;
      clearTimeout(this.timer);
      this.timer = setTimeout(() => this.$emit("change", value), AFTER_MS);
    },
    now(value) {
      clearTimeout(this.timer);
      this.text = value;
      this.$emit("change", value);
    },
  },
  render() {
    const common = { class: "control", name: this.name, "aria-label": this.label };
    const control = this.options
      ? h(
          "select",
          { ...common, value: this.text, onChange: (event) => this.now(event.target.value) },
          this.options.map(([value, text]) =>
            h("option", { value, key: value, selected: value === this.text }, text),
          ),
        )
      : h("input", {
          ...common,
          type: this.search ? "search" : "text",
          value: this.text,
          placeholder: this.hint,
          autocomplete: "off",
          spellcheck: "false",
          "data-search": this.search || undefined,
          onInput: (event) => this.later(event.target.value),
          onChange: (event) => this.now(event.target.value),
        });
    return h("label", { class: "field" }, [h("span", { class: "field-label", "aria-hidden": "true" }, this.label), control]);
  },
};
