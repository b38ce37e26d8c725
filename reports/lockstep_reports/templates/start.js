// The list of the cases and their data are compressed and encoded as base64. The page starts when they are unpacked.
const unpack = async (packed) => {
  const bytes = Uint8Array.from(atob(packed), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
};

const started = (async () => {
  const { groups, ...data } = await unpack(document.getElementById("packed").textContent);
  const list = document.getElementById("groups");
  if (list) list.innerHTML = groups; // escaped in Python
  startPage(detailsOf(data));
})();
started.catch((error) => {
  const note = document.createElement("p");
  note.className = "warning";
  note.textContent = `The cases cannot be listed in this browser (${error.message}). Browsers from 2023 on can.`;
  document.querySelector("main").prepend(note);
});
