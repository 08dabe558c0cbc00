// Makers of elements. Texts go into text nodes alone, never into HTML.

export const $ = (id) => document.getElementById(id);

export function element(name, properties, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children.map((child) => child ?? ""));
  return made;
}

export const press = (label, onclick, more) => element("button", { type: "button", onclick, ...more }, label);

/** A moment in the reader's time zone, from Unix seconds. */
export function moment(seconds) {
  return new Date(seconds * 1000).toLocaleString([], { dateStyle: "short", timeStyle: "medium" });
}
