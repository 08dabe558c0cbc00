// A subset of Markdown for the answers of models, as plain nodes: a string, or
// {tag, href?, children}. Pure and safe: no tags but these, no addresses but http and https, and
// nothing is ever fetched. All other text stays as it is.

export const TAGS = new Set(["p", "pre", "code", "strong", "em", "ul", "ol", "li", "a"]);
const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const ITEM = /^ {0,9}(?:([-*+])|\d{1,9}[.)]) +(.*)$/;
const INLINE = /`([^`\n]+)`|\*\*(?=\S)([^*\n]+)\*\*|(?<![\w*])\*(?=\S)([^*\n]+)\*(?!\*)|\[([^\][\n]{1,300})\]\((https?:\/\/[^\s()<>]{1,2000})\)|(?<!\w)(https?:\/\/[^\s<>()"'`*[\]]{1,2000})/gu;

/** The blocks of a text. */
export function markdown(text) {
  const blocks = [];
  const lines = text.split("\n");
  for (let at = 0; at < lines.length; ) {
    const fence = FENCE.exec(lines[at]);
    if (fence) at = code(blocks, lines, at, fence[1]);
    else if (ITEM.test(lines[at])) at = list(blocks, lines, at);
    else if (lines[at].trim()) at = paragraph(blocks, lines, at);
    else at += 1;
  }
  return blocks;
}

/** The plain text of a list of nodes. */
export function plain(nodes) {
  return nodes.map((node) => (typeof node === "string" ? node : plain(node.children))).join("");
}

function code(blocks, lines, from, mark) {
  let at = from + 1;
  const closes = (line) => line.trim().startsWith(mark) && !line.trim().replaceAll(mark[0], "");
  while (at < lines.length && !closes(lines[at])) at += 1;
  blocks.push({ tag: "pre", children: [lines.slice(from + 1, at).join("\n")] });
  return at + 1;
}

function list(blocks, lines, from) {
  const tag = ITEM.exec(lines[from])[1] ? "ul" : "ol";
  const items = [];
  let at = from;
  for (; at < lines.length && lines[at].trim(); at += 1) {
    const item = ITEM.exec(lines[at]);
    if (item) items.push([item[2]]);
    else if (/^\s/.test(lines[at])) items.at(-1).push(lines[at].trim());
    else break;
  }
  blocks.push({ tag, children: items.map((each) => ({ tag: "li", children: inline(each.join("\n")) })) });
  return at;
}

function paragraph(blocks, lines, from) {
  let at = from;
  while (at < lines.length && lines[at].trim() && !FENCE.test(lines[at]) && !(at > from && ITEM.test(lines[at]))) at += 1;
  blocks.push({ tag: "p", children: inline(lines.slice(from, at).join("\n").replace(/^#{1,6} (.*)$/gm, "**$1**")) });
  return at;
}

function inline(text) {
  const nodes = [];
  let from = 0;
  for (const found of text.matchAll(INLINE)) {
    if (found.index > from) nodes.push(text.slice(from, found.index));
    nodes.push(span(found));
    from = found.index + found[0].length;
  }
  if (from < text.length) nodes.push(text.slice(from));
  return nodes;
}

function span([whole, literal, bold, leaning, label, target, bare]) {
  if (literal !== undefined) return { tag: "code", children: [literal] };
  if (bold !== undefined) return { tag: "strong", children: inline(bold) };
  if (leaning !== undefined) return { tag: "em", children: inline(leaning) };
  const href = address(target ?? bare);
  return href ? { tag: "a", href, children: [label ?? bare] } : whole;
}

/** The address of a link, if it is http or https. */
function address(text) {
  try {
    const url = new URL(text);
    return url.protocol === "https:" || url.protocol === "http:" ? url.href : null;
  } catch {
    return null;
  }
}
