// Keeps the page's own files for a start without the hub. The hub is asked first, so that a new version is never missed.
const CACHE = "nearfar-worker";
const FILES = ["/", "/page.js", "/engine.js", "/download.js", "/style.css", "/manifest.webmanifest", "/icon.svg"];

self.addEventListener("install", (event) => event.waitUntil(caches.open(CACHE).then((cache) => cache.addAll(FILES))));

self.addEventListener("fetch", (event) => {
  const { pathname } = new URL(event.request.url);
  const isOurs = FILES.includes(pathname) || pathname.startsWith("/engine/");
  if (event.request.method === "GET" && isOurs) event.respondWith(fresh(event.request));
});

async function fresh(request) {
  const cache = await caches.open(CACHE);
  try {
    const response = await fetch(request);
    if (response.ok) await cache.put(request, response.clone());
    return response;
  } catch (error) {
    const kept = await cache.match(request);
    if (kept) return kept;
    throw error;
  }
}
