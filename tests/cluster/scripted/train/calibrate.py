raise SystemExit("a scripted rank has no peaks")
