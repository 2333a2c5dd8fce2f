// Draws the diagrams of the book with Mermaid. Without network access their source text stays readable.
const diagrams = [...document.querySelectorAll("code.language-mermaid")];
if (diagrams.length > 0) {
  import("https://cdn.jsdelivr.net/npm/mermaid@11.12.0/dist/mermaid.esm.min.mjs").then(({ default: mermaid }) => {
    const dark = ["coal", "navy", "ayu"].some((theme) => document.documentElement.classList.contains(theme));
    mermaid.initialize({ startOnLoad: false, theme: dark ? "dark" : "default" });
    for (const code of diagrams) {
      const drawn = document.createElement("div");
      drawn.className = "mermaid";
      drawn.textContent = code.textContent;
      code.parentElement.replaceWith(drawn);
    }
    mermaid.run();
  });
}
