"use strict";
// Shares as packing.py packs them, and elements of a page; put before the script of each view.
function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}
async function unpacked(node) { // bytes, the root of a share times `levels` each
  const text = atob(node.textContent), packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) packed[at] = text.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
function sharesOf(levels) { // of each byte
  return Float32Array.from({ length: 256 }, (_, step) => (step / levels) ** 2);
}
