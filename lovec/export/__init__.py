"""Write a trained policy as an adapter or a merged model with a model card, and upload it to the hub."""
