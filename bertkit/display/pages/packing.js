"use strict";
// Unpack attention weights, and create elements. This comes before the script of each view.
function make(tag, properties = {}, ...children) {
  const node = Object.assign(document.createElement(tag), properties);
  node.append(...children);
  return node;
}
async function unpacked(node) { // returns bytes, each the square root of a weight times `levels`
  const text = atob(node.textContent), packed = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) packed[at] = text.charCodeAt(at);
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}
function sharesOf(levels) { // returns the weight that each byte stands for
  return Float32Array.from({ length: 256 }, (_, step) => (step / levels) ** 2);
}
