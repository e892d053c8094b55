    loss = model(batch).loss
    loss.backward()
    optimizer.step(); optimizer.zero_grad()
    epoch_losses.append(loss)
